"""The peers, a module a package: each offers its ways to do a task as CONTENDERS."""
