"""Prints every record of a .wandb file as a line of JSON, with W&B's own reader."""

import json
import sys

import wandb
from google.protobuf.json_format import MessageToDict

wandb._assert_is_internal_process = True
from wandb.proto import wandb_internal_pb2  # noqa: E402
from wandb.sdk.internal import datastore  # noqa: E402

store = datastore.DataStore()
store.open_for_scan(sys.argv[1])
while True:
    data = store.scan_data()
    if data is None:
        break
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    print(json.dumps(MessageToDict(record)))
