"""What vendors' hardware can do, as data with its sources."""
