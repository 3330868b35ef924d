package main

import (
	"os"
	"strings"
	"testing"
)

func TestRelayDoctorWarnsOfATokenForAllCompanies(t *testing.T) {
	t.Parallel()
	const warning = "WARN  daemon, for orders: the token is valid for other companies, too"
	h := newInstallation(t, sharedRedis(t), "")
	r := newRelayTrial(t, h, h.start(t))
	doctor := func() result {
		return command(t, "", "relay", "doctor", "--timeout", patience.String(), "--config", r.file("relay.yml"))
	}
	if got := doctor(); got.code != exitOK || strings.Contains(got.stdout, "WARN") {
		t.Errorf("%+v", got)
	}
	minted := command(t, "", "token", "--data-dir", h.dir, "--config", h.dir+"/config.yml", "--scope", "events:write")
	minted.want(t, exitOK, "ey", "")
	r.authorize(minted.stdout)
	doctor().want(t, exitOK, warning, "")
	settings := strings.Replace(r.read("relay.yml"), "companies: [", "companies: [7b1de0d2-60e0-4a7f-8d0c-2c9b5f6f0a01, ", 1)
	r.write("relay.yml", settings)
	if got := doctor(); got.code != exitOK || strings.Contains(got.stdout, "WARN") { // several companies need such a token
		t.Errorf("%+v", got)
	}
}

func (r *relayTrial) read(name string) string {
	r.tb.Helper()
	text, err := os.ReadFile(r.file(name))
	if err != nil {
		r.tb.Fatal(err)
	}
	return string(text)
}
