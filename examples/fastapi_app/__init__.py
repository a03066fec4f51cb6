"""A FastAPI application that starts reports and returns their progress."""
