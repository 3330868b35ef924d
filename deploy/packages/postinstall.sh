#!/bin/sh
# Creates the user of the services and lets it read the settings. Restarts running services.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
	systemd-sysusers /usr/lib/sysusers.d/spendhook.conf
elif ! getent passwd spendhook >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/spendhook --no-create-home --shell /usr/sbin/nologin spendhook
fi
chgrp spendhook /etc/spendhook
for file in /etc/spendhook/spendhook.yml /etc/spendhook/environment /etc/spendhook/relay.yml; do
	[ ! -e "$file" ] || chgrp spendhook "$file"
done
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart spendhook.service spendhook-relay.service
fi
