"""Reading stores: views as Arrow batches, snapshots, and the stream of the history."""
