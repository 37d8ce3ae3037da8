"""Deliver by Airflow: every hour what the event log has, by `tidelog pipeline --once`.

Capture runs all the time, apart from Airflow. The worker has Tidelog with Spark in /opt/tidelog,
and the variables of the configuration in its environment. Put this file into Airflow's folder of
DAGs.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

TIDELOG = "/opt/tidelog/bin/tidelog"
CONFIG = "/etc/tidelog/tidelog.yaml"

with DAG(
    "tidelog_pipeline",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # a second delivery of the same pipeline would end with exit code 2
    # It resumes where the destination is: a retry repeats nothing.
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
):
    deliver = BashOperator(
        task_id="deliver",
        bash_command=f"{TIDELOG} pipeline {CONFIG} --once",
        append_env=True,
        execution_timeout=timedelta(hours=6),
    )
    verify = BashOperator(
        task_id="verify",
        bash_command=f"{TIDELOG} verify {CONFIG}",
        append_env=True,
        retries=0,
    )
    deliver >> verify
