//go:build examples

package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"spendhook/internal/porttest"
)

// Each driver loads a program of docs/receiving-by-hand.md and prints the names of the v1 vectors that it judges wrongly, and
// how many there were.
var byHandDrivers = map[string]string{
	"php": `<?php
require 'receiver.php';
$file = json_decode(file_get_contents($argv[1]), true);
$count = 0;
foreach ($file['cases'] as $case) {
    if ($case['keys'] !== null) continue;
    $count++;
    $header = fn ($name) => $case['headers']["webhook-$name"] ?? '';
    if (verified($header('id'), $header('timestamp'), $header('signature'), base64_decode($case['body'] ?? ''), $case['secrets'], $file['now']) !== $case['valid']) echo $case['name'], "\n";
}
echo $count;`,
	"rb": `require_relative "receiver"
file = JSON.parse(File.read(ARGV[0]))
cases = file["cases"].select { |c| c["keys"].nil? }
cases.each do |c|
  id, timestamp, signatures = %w[id timestamp signature].map { |name| c["headers"]["webhook-#{name}"].to_s }
  puts c["name"] if verified?(id, timestamp, signatures, Base64.decode64(c["body"].to_s), c["secrets"], file["now"]) != c["valid"]
end
print cases.size`,
}

// The programs of docs/receiving-by-hand.md judge the vectors as the libraries do, and receive from a daemon.
func TestExamplesByHand(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "receiving-by-hand.md"))
	if err != nil {
		t.Fatal(err)
	}
	vectors, err := filepath.Abs(filepath.Join("..", "..", "clients", "conformance", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(vectors)
	if err != nil {
		t.Fatal(err)
	}
	count := strconv.Itoa(strings.Count(string(file), `"keys": null`))
	for language, extension := range map[string]string{"php": "php", "ruby": "rb"} {
		_, rest, _ := strings.Cut(string(page), "```"+language+"\n")
		program, _, found := strings.Cut(rest, "```\n")
		if !found {
			t.Fatalf("the page has no program in %s", language)
		}
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			for name, text := range map[string]string{"receiver": program, "driver": byHandDrivers[extension]} {
				if err := os.WriteFile(filepath.Join(folder, name+"."+extension), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			driver := exec.CommandContext(t.Context(), language, "driver."+extension, vectors)
			driver.Dir = folder
			if out, err := driver.CombinedOutput(); err != nil || string(out) != count {
				t.Errorf("vectors that are judged wrongly: %v\n%s", err, out)
			}
			receiveByHand(t, folder, language, "receiver."+extension)
		})
	}
}

func receiveByHand(t *testing.T, folder, language, program string) {
	t.Helper()
	d := newInstallation(t, sharedRedis(t), "delivery: {schedule: [100ms]}\nsubscribers: {challenge: new}\n").start(t)
	e := &exampleReceiver{inbox: t.TempDir(), daemon: d}
	sub := e.register(t)
	port := strconv.Itoa(porttest.Free(t))
	e.url = "http://127.0.0.1:" + port + "/hook"
	args := []string{program}
	if language == "php" {
		args = []string{"-S", "127.0.0.1:" + port, program}
	}
	cmd := exec.CommandContext(t.Context(), language, args...)
	var output lockedBuffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, &output, &output
	cmd.Env = append(os.Environ(), "SPENDHOOK_SECRET="+otherSecret+" "+e.secret, "INBOX="+e.inbox, "PORT="+port)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	eventually(t, patience, "it listens", func() bool {
		resp, err := http.Post(e.url, "application/json", strings.NewReader("{}"))
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusUnauthorized
	})
	d.cli(t, "", "subscriber", "update", sub, "--callback-url", e.url).want(t, exitOK, "", "")
	d.cli(t, "", "subscriber", "verify", sub).want(t, exitOK, "verified", "")
	d.cli(t, eventLines(0, 3, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	e.awaits(t, "evt_0", "evt_1", "evt_2")
	e.judges(t)
}
