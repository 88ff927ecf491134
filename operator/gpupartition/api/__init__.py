"""What users write and read: the three kinds of gpupartition.dev/v1alpha1."""
