"""Fixtures of the tests."""

import subprocess

import pytest


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Returns a folder with a certificate authority and a certificate of a broker."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = "subjectAltName=DNS:localhost,DNS:locks-leasehold.apps.svc"
    steps = [
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority"],
        ["req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=broker", "-addext", names],
        ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", "server.pem", "-days", "2"],
    ]
    steps[2] += ["-copy_extensions", "copy", "-CAcreateserial"]
    for step in steps:
        subprocess.run(["openssl", *step], cwd=folder, check=True, capture_output=True)
    return folder
