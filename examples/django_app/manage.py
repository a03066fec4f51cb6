"""Django's command line: ``python -m examples.django_app.manage runserver``."""

from __future__ import annotations

import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
