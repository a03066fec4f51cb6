"""``manage.py lease``."""
