"""A FastAPI application that starts reports and tells how far they are."""
