"""Named, complete configurations: functions that return one."""
