"""protobuf's JSON knows maps without descriptor_pb2."""

import subprocess
import sys
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor

from kubemend.common import protobuf_json
from kubemend.common.pb.coordination.v1 import coordination_pb2
from kubemend.common.pb.runtime.v1 import api_pb2

_PARSES = """
import sys
from kubemend.common.pb.runtime.v1 import api_pb2
from kubemend.common.protobuf_json import json_format
given = {"labels": {"a": "b"}, "linux": {"resources": {"unified": {"c": "d"}}}}
config = json_format.ParseDict(given, api_pb2.ContainerConfig())
assert json_format.MessageToDict(config) == given
assert dict(config.linux.resources.unified) == {"c": "d"}
print("google.protobuf.descriptor_pb2" in sys.modules)
"""


def _messages(of: Descriptor) -> Iterator[Descriptor]:
    yield of
    for nested in of.nested_types:
        yield from _messages(nested)


def test_maps_are_read_and_written_without_the_messages_about_messages() -> None:
    assert subprocess.check_output([sys.executable, "-c", _PARSES], text=True) == "False\n"


def test_a_field_is_a_map_if_the_options_of_its_message_say_so() -> None:
    tops = (top for file in (api_pb2, coordination_pb2) for top in file.DESCRIPTOR.message_types_by_name.values())
    fields = [field for top in tops for message in _messages(top) for field in message.fields]
    is_map = {
        field.full_name: field.message_type is not None and field.message_type.GetOptions().map_entry
        for field in fields
    }
    assert {field.full_name: protobuf_json._is_map_entry(field) for field in fields} == is_map
    assert True in is_map.values()
