"""What people and pipelines run: commands that look at a cluster and tell what they see."""
