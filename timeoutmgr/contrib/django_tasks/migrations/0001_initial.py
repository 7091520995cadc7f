"""Create the table of tasks."""

from typing import Any

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django ships no types
    """The first form of the table."""

    initial = True
    dependencies: list[Any] = []
    operations = [
        migrations.CreateModel(
            name="TaskRecord",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("task", models.CharField(max_length=500)),
                ("backend", models.CharField(max_length=100)),
                ("queue_name", models.CharField(max_length=100)),
                ("priority", models.SmallIntegerField()),
                ("status", models.CharField(max_length=10)),
                ("permit", models.CharField(db_index=True, max_length=64)),
                ("args", models.JSONField()),
                ("kwargs", models.JSONField()),
                ("run_after", models.DateTimeField(null=True)),
                ("enqueued_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("last_attempted_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(db_index=True, null=True)),
                ("errors", models.JSONField(default=list)),
                ("worker_ids", models.JSONField(default=list)),
                ("return_value", models.JSONField(null=True)),
            ],
            options={
                "db_table": "timeoutmgr_django_tasks",
                "indexes": [
                    models.Index(
                        fields=["status", "-priority", "enqueued_at"], name="timeoutmgr_task_order"
                    )
                ],
            },
        )
    ]
