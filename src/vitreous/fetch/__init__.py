"""Public datasets brought to this machine: downloaded, checked, unpacked, and complete or not there."""
