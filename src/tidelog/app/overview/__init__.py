"""What one Tidelog does, how far behind it is, and what is wrong, by a status document."""
