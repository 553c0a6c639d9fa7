"""What tuning needs: whether it is here, what that means for results, and what to do where it is not."""
