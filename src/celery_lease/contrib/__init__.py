"""Integrations with other frameworks, each an extra that is imported only by its users."""
