"""`leadsman bench up | smoke | run | compare | down`: policies against live engines through Envoy.

Engines and gateway are brought up once and stay as they are for all policies that are compared,
since another start would be another deployment; the picker, which is what differs, is started with
each policy's budget.
"""
