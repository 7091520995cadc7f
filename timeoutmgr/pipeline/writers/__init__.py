"""Writers of rows into stores."""
