#!/bin/sh -e
# A Spark cluster of one master and two workers on this machine, a Connect server on it, and the
# same job three times: here, on the cluster, and through the server. All have to find the same.
# Usage: cluster.sh SETTINGS [COMMAND ...], such as: cluster.sh sales.toml lateness --by day
# SETTINGS is a settings file. What is in its store must not change meanwhile: the job is one that
# only reads. Needs timeoutmgr[spark] in PYTHON and, for the last of the three, pyspark[connect] in
# it too, or a CLIENT, which is a Python with timeoutmgr[spark-client].
# Exit code: the job's, or 1 where it did not find the same.
settings=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- reconcile

here=$(dirname "$0")
python=${PYTHON:-python}
client=${CLIENT:-$python}
folder=$(mktemp -d)
started=
ended=0
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

# A job's exit code says what it found; the others are to be seen all the same.
job() {
    found=$folder/$1.json
    by=$2
    shift 2
    $by -m timeoutmgr --json pipeline "$@" --store "$settings" >"$found" || ended=$?
    cat "$found"
}

master=$(port)
start master org.apache.spark.deploy.master.Master --host 127.0.0.1 --port "$master" --webui-port 0
await "$master" master
for number in 1 2; do
    start "worker$number" org.apache.spark.deploy.worker.Worker --host 127.0.0.1 --webui-port 0 \
        --cores 1 --memory 1g --work-dir "$folder/work$number" "spark://127.0.0.1:$master"
done

echo "# on this machine"
job here "$python" "$@"

echo "# on a cluster of two workers"
job cluster "$python" "$@" --master "spark://127.0.0.1:$master"

connect=$(port)
start connect org.apache.spark.deploy.SparkSubmit \
    --class org.apache.spark.sql.connect.service.SparkConnectServer --master "spark://127.0.0.1:$master" \
    --conf "spark.connect.grpc.binding.port=$connect" --conf spark.sql.session.timeZone=UTC \
    --conf spark.driver.host=127.0.0.1 --conf spark.ui.enabled=false \
    --conf "spark.sql.warehouse.dir=$folder/warehouse" --name timeoutmgr-connect spark-internal
await "$connect" connect
echo "# on the cluster through Spark Connect"
job connect "$client" "$@" --remote "sc://127.0.0.1:$connect"

$python "$here/same.py" "$folder/here.json" "$folder/cluster.json" "$folder/connect.json" || ended=1
exit "$ended"
