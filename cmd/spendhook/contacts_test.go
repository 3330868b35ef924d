package main

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spendhook/api/gen"
	"spendhook/internal/smtptest"
)

// smtpSettings has a daemon send mail through a server, with its CA and password in files of a directory.
func smtpSettings(tb testing.TB, s *smtptest.Server, dir string) string {
	tb.Helper()
	ca, password := filepath.Join(dir, "smtp-ca.pem"), filepath.Join(dir, "smtp-password")
	for file, text := range map[string][]byte{
		ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate}), password: []byte(smtptest.Password + "\n"),
	} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return fmt.Sprintf("smtp: {host: %s, port: %d, ca_file: %s, username: %s, password_file: %s, from: hooks@example.com}\n",
		smtptest.Host, s.Port, ca, smtptest.Username, password)
}

var confirmLink = regexp.MustCompile(`(?s)http://[^ ]*?/contacts/confirm\?t=.*?\r\n\r\n`)

// linkToConfirm is the link in a mail that asks a contact to confirm.
func linkToConfirm(mail string) string {
	return strings.TrimSpace(strings.NewReplacer("=\r\n", "", "=3D", "=").Replace(confirmLink.FindString(mail)))
}

// The way of a contact through a daemon: the mail to confirm, the page of its link, and its state in the API.
func TestAContactConfirms(t *testing.T) {
	t.Parallel()
	server := smtptest.New(t)
	h := newInstallation(t, sharedRedis(t), smtpSettings(t, server, t.TempDir()))
	d := h.start(t)
	status, _, body := d.do(t, http.MethodPost, "/api/v1/subscribers", `{"name":"A","callbackUrl":"http://127.0.0.1:9/a","events":["PAYMENT_PAID"],"contacts":["ops@example.com"]}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	eventually(t, deliveryPatience, "the mail comes", func() bool { return len(server.Messages()) > 0 })
	link := linkToConfirm(string(server.Messages()[0].Raw))
	if code, page := get(t, link); code != http.StatusOK || !strings.Contains(page, "<button>Confirm</button>") {
		t.Fatalf("%s: %d %s", link, code, page)
	}
	resp, err := http.Post(link, "application/x-www-form-urlencoded", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	var list struct {
		Content []gen.Subscriber `json:"content"`
	}
	d.read(t, "/api/v1/subscribers", &list)
	if c := (*list.Content[0].Contacts)[0]; c.State != "confirmed" {
		t.Errorf("%+v", c)
	}
	if _, _, log := d.do(t, http.MethodGet, "/api/v1/audit?action=contact.confirm", ""); !strings.Contains(log, `"kind":"contact"`) || !strings.Contains(log, `"subject":"ops@example.com"`) {
		t.Errorf("the audit log: %s", log)
	}
}

func TestDoctorChecksTheMailServer(t *testing.T) {
	t.Parallel()
	server := smtptest.New(t)
	h := newInstallation(t, sharedRedis(t), "")
	file := filepath.Join(h.dir, "config.yml")
	look := func(settings string, result, message string) {
		t.Helper()
		h.settings(t, "dev: true\nredis: redis://127.0.0.1:1\n"+settings)
		got := found(t, exitFailure, "--config", file, "--data-dir", h.dir)["mail"]
		if got.Result != result || !strings.Contains(got.Message, message) {
			t.Errorf("%+v, want %s and %q", got, result, message)
		}
	}
	look("", findingOK, "not configured")
	settings := smtpSettings(t, server, t.TempDir())
	look(settings, findingOK, "the SMTP server answers")
	look(strings.Replace(settings, "username: ", "username: x", 1), findingProblem, "535")
	server.Stop()
	look(settings, findingProblem, "refused")
}

// The form shows a chat by what is shown of its URL, which keeps it.
func TestConsoleSetsContacts(t *testing.T) {
	t.Parallel()
	e := newStory(t, smtpSettings(t, smtptest.New(t), t.TempDir())).editor()
	e.save(http.StatusSeeOther, url.Values{"contacts": {"ops@example.com\r\nhttps://8.8.8.8/services/hunter22\r\n"}})
	chat := (*e.shown().Contacts)[1].Address
	for _, path := range []string{e.path, e.path + "/edit"} {
		_, _, page := e.visitor.get(path)
		if !strings.Contains(page, "ops@example.com") || !strings.Contains(page, chat) || strings.Contains(page, "hunter22") {
			t.Errorf("%s: %s", path, page)
		}
	}
	if _, _, page := e.visitor.get(e.path); !strings.Contains(page, "Not confirmed") {
		t.Error("no state")
	}
	if page := e.save(http.StatusBadRequest, url.Values{"contacts": {chat + "\nops"}}); !strings.Contains(page, "must be a mail address") || !strings.Contains(page, chat+"\nops") {
		t.Errorf("refused: %s", page)
	}
	e.save(http.StatusSeeOther, url.Values{"contacts": {chat}})
	if got := *e.shown().Contacts; len(got) != 1 || got[0].Address != chat {
		t.Errorf("%+v", got)
	}
	e.save(http.StatusSeeOther, url.Values{"contacts": {""}})
	if got := e.shown().Contacts; got != nil {
		t.Errorf("%+v", *got)
	}
}
