//go:build examples

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher/webhook/signature"
)

// The receivers of examples/ do what their README says, each with a daemon.
func TestExampleReceivers(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "examples")
	for _, name := range []string{"plain", "standardwebhooks"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join(root, "go"), "-o", filepath.Join(t.TempDir(), name), "./"+name)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		testReceiver(t, "go-"+name, build.Args[5])
	}
	testReceiver(t, "node", "node", filepath.Join(root, "node", "receiver.mjs"))
	testReceiver(t, "node-standardwebhooks", "node", filepath.Join(root, "node", "receiver-standardwebhooks.mjs"))
	testReceiver(t, "python", "python3", filepath.Join(root, "python", "receiver.py"))
	testReceiver(t, "java", "java", filepath.Join(root, "java", "Receiver.java"))
}

func testReceiver(t *testing.T, name string, command ...string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		d := newInstallation(t, sharedRedis(t), "delivery: {schedule: [100ms]}\nsubscribers: {challenge: new}\npublic_url: https://spend.example.com\n").start(t)
		e := &exampleReceiver{command: command, inbox: t.TempDir(), daemon: d}
		sub := e.register(t)

		e.refusesShortKeys(t)
		stop := e.start(t, "")
		d.cli(t, "", "subscriber", "update", sub, "--callback-url", e.url).want(t, exitOK, "", "")
		d.cli(t, "", "subscriber", "verify", sub).want(t, exitOK, "verified", "")
		d.cli(t, eventLines(0, 3, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
		e.awaits(t, "evt_0", "evt_1", "evt_2")
		e.judges(t)
		e.refusesOthers(t)
		e.handshake(t, sub, http.StatusUnprocessableEntity)
		stop()

		d.cli(t, "", "subscriber", "pause", sub).want(t, exitOK, "", "")
		d.cli(t, eventLines(3, 2, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
		e.env = []string{"SPENDHOOK_ORIGIN=Spend.Example.COM"} // the daemon asks as spend.example.com
		e.start(t, sub)
		e.awaits(t, "evt_3", "evt_4")
		e.refusesOthers(t)
		e.handshake(t, sub, http.StatusOK)
		if strings.Count(e.lines.String(), "received evt_0\n") != 1 {
			t.Errorf("the feed repeated what was known:\n%s", e.lines.String())
		}
	})
}

// The receiver of HTTP message signatures accepts what the daemon signs, with either algorithm, and nothing else.
func TestExampleMessageReceiver(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "delivery: {schedule: [100ms]}\nsubscribers: {challenge: new}\n").start(t)
	e := &exampleReceiver{
		command: []string{"node", filepath.Join("..", "..", "examples", "node", "receiver-httpmessage.mjs")}, inbox: t.TempDir(), daemon: d,
		env: []string{"SPENDHOOK_JWKS=" + d.api + "/.well-known/webhook-keys/" + developerCompany.String()},
	}
	sub := e.register(t)
	e.start(t, "")
	d.cli(t, "", "subscriber", "update", sub, "--callback-url", e.url, "--signature", "http-message").want(t, exitOK, "", "")
	d.cli(t, "", "subscriber", "verify", sub).want(t, exitOK, "verified", "")
	d.cli(t, eventLines(0, 3, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	e.awaits(t, "evt_0", "evt_1", "evt_2")
	d.cli(t, "", "subscriber", "update", sub, "--signature", "http-message", "--signature", "standard", "--signature-algorithm", "ecdsa-p256-sha256").want(t, exitOK, "", "")
	d.cli(t, "", "webhook-key", "rotate", "--yes").want(t, exitFailure, "", "KEYS_ROTATED_RECENTLY")
	d.cli(t, eventLines(3, 2, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	e.awaits(t, "evt_3", "evt_4")
	signed, err := signature.V1(e.secret, "forged", time.Now().Unix(), []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := e.post(t, "forged", strconv.FormatInt(time.Now().Unix(), 10), signed, []byte("{}")); got != http.StatusUnauthorized {
		t.Errorf("without a message signature: answered %d", got)
	}
}

// A library that shares no code with Spendhook judges its signatures as the vectors of the conformance suite say, and those
// of RFC 9421.
func TestExampleVectorsInNode(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "node", "--test", filepath.Join("..", "..", "examples", "node", "vectors.test.mjs"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// exampleReceiver is one of the programs, and the folder that it fills.
type exampleReceiver struct {
	command []string
	inbox   string
	url     string // where it listens
	daemon  *running
	secret  string
	env     []string // more variables
	lines   lockedBuffer
}

func (e *exampleReceiver) register(t *testing.T) (subscriber string) {
	t.Helper()
	r := e.daemon.cli(t, "", "subscriber", "create", "--name", t.Name(), "--callback-url", "http://127.0.0.1:9/", "--event", "PAYMENT_PAID", "-o", "json")
	r.want(t, exitOK, "", "")
	var created gen.SubscriberWithSecret
	if err := json.Unmarshal([]byte(r.stdout), &created); err != nil {
		t.Fatal(err)
	}
	e.secret = created.Secret
	return created.UUID.String()
}

// start runs the program until the test ends or stop is called; with a subscriber it
// catches up.
func (e *exampleReceiver) start(t *testing.T, subscriber string) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), e.command[0], e.command[1:]...)
	// Of two secrets either may have signed.
	cmd.Env = append(os.Environ(), "SPENDHOOK_SECRET="+otherSecret+" "+e.secret, "INBOX="+e.inbox, "PORT=0")
	cmd.Env = append(cmd.Env, e.env...)
	if subscriber != "" {
		cmd.Env = append(cmd.Env, "SPENDHOOK_URL="+e.daemon.api, "SPENDHOOK_TOKEN="+e.daemon.token, "SPENDHOOK_SUBSCRIBER="+subscriber)
	}
	url, stop := startListening(t, cmd, &e.lines)
	e.url = url + "/hook"
	return stop
}

// startListening runs a program until stop or the end of the test. It returns the address that the program says to listen
// on; the program's output goes to printed.
func startListening(t *testing.T, cmd *exec.Cmd, printed *lockedBuffer) (address string, stop func()) {
	t.Helper()
	var complaints lockedBuffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if url, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
				listening <- url
			}
			fmt.Fprintln(printed, lines.Text())
		}
	}()
	stop = func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("%s%s", printed.String(), complaints.String())
		}
	})
	select {
	case address = <-listening:
	case <-ended:
		t.Fatalf("it ended: %s", complaints.String())
	case <-time.After(patience):
		t.Fatal("it does not listen")
	}
	return address, stop
}

// refusesShortKeys checks that the program does not start with a key with which anybody could sign.
func (e *exampleReceiver) refusesShortKeys(t *testing.T) {
	t.Helper()
	for _, secret := range []string{"", "whsec_", "whsec_QUJD", "whsec_" + strings.Repeat("A", 28), e.secret + " whsec_"} {
		cmd := exec.CommandContext(t.Context(), e.command[0], e.command[1:]...)
		cmd.Env = append(os.Environ(), "SPENDHOOK_SECRET="+secret, "INBOX="+e.inbox, "PORT=0")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "SPENDHOOK_SECRET") {
			t.Errorf("with the secrets %q: %v, %s", secret, err, out)
		}
	}
}

// awaits waits until the folder has the events, and checks their bytes.
func (e *exampleReceiver) awaits(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		eventually(t, patience, id+" is kept", func() bool {
			body, err := os.ReadFile(filepath.Join(e.inbox, id+".json"))
			return err == nil && bytes.HasPrefix(body, []byte(`{"id":"`+id+`"`))
		})
	}
}

// judges checks the answers to valid, forged, old and repeated deliveries.
func (e *exampleReceiver) judges(t *testing.T) {
	t.Helper()
	now := time.Now().Unix()
	for name, m := range map[string]struct {
		id, secret string
		at         int64
		want       int
	}{
		"good":                  {"good", e.secret, now, http.StatusNoContent},
		"repeated":              {"evt_0", e.secret, now, http.StatusNoContent},
		"of the other secret":   {"other", otherSecret, now, http.StatusNoContent},
		"forged":                {"forged", "whsec_" + strings.Repeat("B", 32), now, http.StatusUnauthorized},
		"old":                   {"old", e.secret, now - 600, http.StatusUnauthorized},
		"of the future":         {"future", e.secret, now + 600, http.StatusUnauthorized},
		"with a path in its id": {"../evil", e.secret, now, http.StatusInternalServerError},
	} {
		body := []byte(`{"id":"` + m.id + `","event":"PAYMENT_PAID","note":"` + uuid.NewString() + `"}`)
		signature, err := signature.V1(m.secret, m.id, m.at, body)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.post(t, m.id, strconv.FormatInt(m.at, 10), "v1a,AAAA "+signature, body); got != m.want {
			t.Errorf("%s: answered %d, want %d", name, got, m.want)
		}
		kept, err := os.ReadFile(filepath.Join(e.inbox, m.id+".json"))
		if taken := err == nil && bytes.Equal(kept, body); taken != (m.want == http.StatusNoContent && name != "repeated") {
			t.Errorf("%s: it is kept: %v", name, taken)
		}
		if got := e.post(t, m.id, strconv.FormatInt(m.at, 10), signature, append(body, ' ')); got != http.StatusUnauthorized {
			t.Errorf("%s, changed: answered %d", name, got)
		}
	}
	for _, signature := range []string{"", "v1,", "v1", "nonsense \x80"} {
		if got := e.post(t, "none", strconv.FormatInt(now, 10), signature, []byte("{}")); got != http.StatusUnauthorized {
			t.Errorf("with the signature %q: answered %d", signature, got)
		}
	}
	for _, at := range []string{"", "now", "\xb2"} { // the last is a superscript two in ISO 8859-1
		if got := e.post(t, "none", at, "v1,AAAA", []byte("{}")); got != http.StatusUnauthorized {
			t.Errorf("with the timestamp %q: answered %d", at, got)
		}
	}
}

// handshake changes the format of the deliveries, for which the daemon makes the handshake of CloudEvents with the program.
func (e *exampleReceiver) handshake(t *testing.T, subscriber string, want int) {
	t.Helper()
	status, _, body := e.daemon.do(t, http.MethodPatch, "/api/v1/subscribers/"+subscriber, `{"format":"cloudevents","callbackUrl":"`+e.url+`"}`)
	if status != want || (want != http.StatusOK) != strings.Contains(body, "CHALLENGE_FAILED") {
		t.Errorf("the handshake: %d, want %d: %s", status, want, body)
	}
}

// refusesOthers checks that the program agrees in the handshake of CloudEvents to no other system.
func (e *exampleReceiver) refusesOthers(t *testing.T) {
	t.Helper()
	for _, origin := range []string{"evil.example.com", "*", ""} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, e.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("WebHook-Request-Origin", origin)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header; resp.StatusCode != http.StatusMethodNotAllowed || got.Get("Allow") != "POST" || got.Get("WebHook-Allowed-Origin") != "" {
			t.Errorf("a handshake from %q: answered %d, with %v", origin, resp.StatusCode, got)
		}
	}
}

func (e *exampleReceiver) post(t *testing.T, id, at, signature string, body []byte) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {signature}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}
