"""How fleet state travels: records as protobuf, over one resumable gRPC stream."""
