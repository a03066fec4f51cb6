"""The Django app: tasks and views."""
