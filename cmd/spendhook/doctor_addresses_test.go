package main

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spendhook/config"
	"spendhook/internal/egress"
)

// addressesFound returns the findings about egress.addresses: each with its result and its message.
func addressesFound(tb testing.TB, setting string) []string {
	tb.Helper()
	cfg, err := config.Load("", []string{"SPENDHOOK_EGRESS_ADDRESSES=" + setting}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	d := &doctor{cfg: &cfg, timeout: patience}
	d.check(tb.Context(), "egress addresses", "", d.egressAddresses)
	return messages(d)
}

func messages(d *doctor) (list []string) {
	for _, f := range d.findings {
		list = append(list, f.Result+": "+f.Message)
	}
	return list
}

// wantMessages compares the beginnings of findings.
func wantMessages(tb testing.TB, what string, got []string, want ...string) {
	tb.Helper()
	same := len(got) == len(want)
	for i := 0; same && i < len(want); i++ {
		same = strings.HasPrefix(got[i], want[i])
	}
	if !same {
		tb.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestDoctorComparesTheAddressOfThisMachine(t *testing.T) {
	t.Parallel()
	const mine, private, mine6 = "93.184.216.34", "10.1.2.3", "2606:2800:220:1::1"
	for what, c := range map[string]struct {
		listed string
		local  []string
		want   []string
	}{
		"listed":             {mine + "/32", []string{mine}, []string{"ok: deliveries come from " + mine + ", which is listed"}},
		"in a listed range":  {"93.184.216.0/24", []string{mine}, []string{"ok: deliveries come from " + mine}},
		"not listed":         {"93.184.216.35/32", []string{mine}, []string{"problem: deliveries come from " + mine + ", which is in no range"}},
		"behind NAT":         {mine + "/32", []string{private}, []string{"ok: cannot be checked from here: behind NAT"}},
		"private and listed": {"10.0.0.0/8", []string{private}, []string{"ok: deliveries come from " + private}},
		"only one version":   {mine + "/32", []string{private, mine6}, []string{"ok: cannot be checked from here: behind NAT", "problem: deliveries come from " + mine6}},
		"no route":           {mine + "/32", nil, []string{"ok: cannot be checked from here: this machine has no route"}},
	} {
		d := &doctor{}
		var local []netip.Addr
		for _, a := range c.local {
			local = append(local, netip.MustParseAddr(a))
		}
		d.localAddresses([]egress.Source{{Range: netip.MustParsePrefix(c.listed)}}, local)
		wantMessages(t, what, messages(d), c.want...)
	}
}

func TestDoctorNamesChangesOfAddresses(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	now := time.Now()
	at := func(in time.Duration) string { return now.Add(in).UTC().Format(time.RFC3339) }
	wantMessages(t, "no setting", addressesFound(t, "[]"), "ok: none are published")
	// This machine may be behind NAT or not: the last finding is about its own address.
	got := addressesFound(t, fmt.Sprintf(`{cidr: 93.184.216.34, valid_until: %q}, {cidr: 93.184.216.35, valid_from: %q}, {cidr: 93.184.216.36, valid_from: %q, valid_until: %q},
		{cidr: 93.184.216.37, valid_until: %q}, {cidr: 10.0.0.0/8, valid_until: %q}, {cidr: 172.16.0.0/12, valid_from: %q}`,
		at(6*day), at(6*day), at(8*day), at(9*day), at(-time.Hour), at(-time.Hour), at(8*day)))
	wantMessages(t, "changes", got[:min(3, len(got))],
		"warning: 93.184.216.34/32 ends at "+at(6*day), "ok: 93.184.216.35/32 becomes valid at "+at(6*day), "warning: 172.16.0.0/12 is not public")
	if text := strings.Join(got[3:], "\n"); strings.Contains(text, "93.184.216.36") || strings.Contains(text, "93.184.216.37") || strings.Contains(text, "10.0.0.0/8") {
		t.Errorf("a change that is far, or past, is named:\n%s", text)
	}
	wantMessages(t, "not yet", addressesFound(t, fmt.Sprintf(`{cidr: 93.184.216.34, valid_from: %q}, {cidr: 93.184.216.35, valid_until: %q}`, at(30*day), at(-day))),
		"problem: no range of egress.addresses is valid now")
}

func TestDoctorComparesTheAddressOfTheProxy(t *testing.T) {
	t.Parallel()
	for proxy, want := range map[string]string{
		"http://93.184.216.34:3128":          "ok: deliveries go through the egress proxy 93.184.216.34, which is listed",
		"http://u:hunter2@93.184.216.35":     "warning: deliveries go through the egress proxy 93.184.216.35, which is in no range",
		"https://[2606:2800:220:1::1]:3128":  "warning: deliveries go through the egress proxy 2606:2800:220:1::1,",
		"http://10.1.2.3:3128":               "ok: cannot be checked from here: the egress proxy has the internal address 10.1.2.3",
		"http://proxy.spendhook.invalid:312": "ok: cannot be checked: the name of the egress proxy does not resolve",
	} {
		cfg, err := config.Load("", []string{"SPENDHOOK_EGRESS_ADDRESSES={cidr: 93.184.216.34}", "SPENDHOOK_EGRESS_PROXY_URL=" + proxy}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := &doctor{cfg: &cfg, timeout: patience}
		d.check(t.Context(), "egress addresses", "", d.egressAddresses)
		wantMessages(t, proxy, messages(d), want)
	}
}

// Doctor, as a command, says which check the findings about the addresses belong to.
func TestDoctorPrintsTheAddresses(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	file := filepath.Join(h.dir, "config.yml")
	h.settings(t, "dev: true\nredis: redis://127.0.0.1:1\negress: {proxy_url: 'http://127.0.0.1:1', addresses: [{cidr: 93.184.216.34}]}\n")
	command(t, "", "doctor", "--config", file, "--data-dir", h.dir).
		want(t, exitFailure, "ok    egress addresses: cannot be checked from here: the egress proxy has the internal address 127.0.0.1", "")
	h.settings(t, "dev: true\nredis: redis://127.0.0.1:1\n")
	wantFound(t, found(t, exitFailure, "--config", file, "--data-dir", h.dir), map[string]string{"egress addresses": findingOK})
}
