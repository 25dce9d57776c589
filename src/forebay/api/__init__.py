"""What `import forebay as fb` offers: operators, applications, records in and out of Flink jobs.

May import `apps` and below. Users import from `forebay`, never from here.
"""
