"""What pickers recorded, looked at afterwards: graded, explained, and decided again."""
