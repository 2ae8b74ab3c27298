"""How the jobs run on Spark: the session (`session`), with Java's classes kept for the next start
(`class_archive`) and Python workers that begin with the jobs' modules (`worker_daemon`), and tasks on a
server of Spark Connect (`connect_tasks`)."""
