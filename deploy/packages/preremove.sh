#!/bin/sh
# Stops the service when the package goes, not when another version takes its place.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now spendhook.service
	fi
	;;
esac
