#!/bin/sh -e
# A Spark cluster of one master and two workers on this machine, a Connect server on it, and each
# job three times: here, on the cluster, and through the server. All have to find the same.
# Usage: cluster.sh SETTINGS [JOB ...], such as: cluster.sh sales.toml reconcile "lateness --by day"
# SETTINGS is a settings file, and same.py says what a JOB is. What is in the store must not change
# meanwhile, but by the jobs. Needs timeoutmgr[spark] in PYTHON and, for the last of the three,
# pyspark[connect] in it too, or a CLIENT, which is a Python with timeoutmgr[spark-client].
# Exit code: that of the jobs, or 1 where they did not find the same.
settings=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- reconcile

here=$(dirname "$0")
python=${PYTHON:-python}
folder=$(mktemp -d)
started=
trap 'for pid in $started; do kill "$pid" 2>/dev/null || true; done; wait; rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

port() { $python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# The Java and the Python that timeoutmgr itself would take.
JAVA_HOME=$($python -c 'from timeoutmgr.pipeline.spark.java import find_java; print(find_java().home)')
SPARK_HOME=$($python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
PYSPARK_PYTHON=$($python -c 'import sys; print(sys.executable)')
SPARK_LOCAL_IP=127.0.0.1
export JAVA_HOME SPARK_HOME PYSPARK_PYTHON SPARK_LOCAL_IP

start() {
    name=$1
    shift
    "$SPARK_HOME/bin/spark-class" "$@" >"$folder/$name.log" 2>&1 &
    started="$! $started"
}

# Wait until something listens on the port, or say what its log says.
await() {
    n=0
    until $python -c "import socket; socket.create_connection(('127.0.0.1', $1), 1)" 2>/dev/null; do
        n=$((n + 1))
        [ $n -lt 180 ] || { tail -20 "$folder/$2.log" >&2; exit 1; }
        sleep 1
    done
}

master=$(port)
start master org.apache.spark.deploy.master.Master --host 127.0.0.1 --port "$master" --webui-port 0
await "$master" master
for number in 1 2; do
    start "worker$number" org.apache.spark.deploy.worker.Worker --host 127.0.0.1 --webui-port 0 \
        --cores 2 --memory 2g --work-dir "$folder/work$number" "spark://127.0.0.1:$master"
done

# The server keeps its cores as long as it runs: it takes a half, and each job the other half.
connect=$(port)
start connect org.apache.spark.deploy.SparkSubmit \
    --class org.apache.spark.sql.connect.service.SparkConnectServer --master "spark://127.0.0.1:$master" \
    --conf "spark.connect.grpc.binding.port=$connect" --conf spark.sql.session.timeZone=UTC \
    --conf spark.driver.host=127.0.0.1 --conf spark.ui.enabled=false --conf spark.cores.max=2 \
    --conf "spark.sql.warehouse.dir=$folder/warehouse" --name timeoutmgr-connect spark-internal
await "$connect" connect

"$python" "$here/same.py" "$settings" "spark://127.0.0.1:$master" "sc://127.0.0.1:$connect" "$@"
