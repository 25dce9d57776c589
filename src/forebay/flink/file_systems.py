"""Flink's file systems (S3) in this process's JVM."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyflink import java_gateway

FILE_SYSTEM_KEYS = ("s3.", "s3a.", "fs.", "io.", "plugin.", "security.delegation.")
"""Prefixes of the options that file systems read."""
LOADED = "forebay.file-systems"
"""The JVM property with the options that its file systems were set up with."""


def load_file_systems(plugins: Path, options: Mapping[str, str]) -> None:
    """Load the file systems in the folder `plugins` into this process's JVM, with Flink's `options`; an
    embedded cluster does not load them itself. Blocks for a second; does nothing if they are loaded with the
    same options. Raises `Py4JJavaError` for a wrong option."""
    gateway = java_gateway.get_gateway()
    chosen = sorted((key, value) for key, value in options.items() if key.startswith(FILE_SYSTEM_KEYS))
    mark = hashlib.blake2b(repr((str(plugins), chosen)).encode(), digest_size=16).hexdigest()
    if gateway.jvm.System.getProperty(LOADED) == mark:
        return
    mute_hadoop(gateway.jvm)
    flink = gateway.jvm.org.apache.flink
    configuration = flink.configuration.Configuration.fromMap(dict(options))
    folder = gateway.jvm.java.nio.file.Paths.get(
        str(plugins.absolute()), gateway.new_array(gateway.jvm.java.lang.String, 0)
    )
    found = flink.core.plugin.DirectoryBasedPluginFinder(folder).findPlugins()
    patterns = flink.configuration.CoreOptions.getPluginParentFirstLoaderPatterns(configuration)
    manager = flink.core.plugin.DefaultPluginManager(found, patterns)
    flink.core.fs.FileSystem.initialize(configuration, manager)
    gateway.jvm.System.setProperty(LOADED, mark)


def reach_file_system(uri: str) -> None:
    """Make a request to the file system of `uri`, which loads what a job will need; blocks. Raises
    `Py4JError` if it fails."""
    place = java_gateway.get_gateway().jvm.org.apache.flink.core.fs.Path(uri)
    place.getFileSystem().exists(place)


def mute_hadoop(java: Any) -> None:
    """Let Hadoop, which file systems are built on, log only errors: Flink's settings send the rest to
    standard output."""
    log4j = java.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.hadoop", log4j.Level.ERROR)
