"""Small, complete applications with leased tasks, and recipes; see README.md beside this file."""
