package conformance

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// patience bounds how long the program may take for anything.
const patience = 30 * time.Second

// program is the program that is tested, running.
type program struct {
	url   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
	http  *http.Client
}

// startProgram waits until the program listens.
func startProgram(ctx context.Context, o *Options, env map[string]string) (*program, error) {
	cmd := exec.CommandContext(ctx, o.Command[0], o.Command[1:]...) //nolint:gosec // the caller's command
	cmd.Env = os.Environ()
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	complaints := &tail{to: o.Errors}
	cmd.Stderr = complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &program{cmd: cmd, ended: make(chan struct{}), http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: patience}}
	first := make(chan string, 1)
	go func() {
		defer close(p.ended)
		lines := bufio.NewReader(out)
		line, _ := lines.ReadString('\n')
		first <- line
		_, _ = io.Copy(io.Discard, lines)
		_ = cmd.Wait()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case line := <-first:
		url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
		if ok {
			p.url = url
			return p, nil
		}
		err = fmt.Errorf("its first line is %q", line)
	case <-timer.C:
		err = errors.New("it does not listen")
	}
	p.kill()
	return nil, fmt.Errorf("%w; %s", err, complaints.String())
}

// runs reports whether the program was started and has not ended. It may be called on nil.
func (p *program) runs() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill ends the program without a warning, and waits for that.
func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
	p.http.CloseIdleConnections()
}

// call sends a request to one of the program's own addresses, and decodes the answer, which must be JSON.
func (p *program) call(ctx context.Context, method, path string, body []byte, answer any) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Timeout: 2 * patience}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return 0, fmt.Errorf("%s %s was answered %d with %.200q: %w", method, path, resp.StatusCode, text, err)
	}
	return resp.StatusCode, nil
}

// inbox returns the ids that were worked on.
func (p *program) inbox(ctx context.Context) (ids []string, err error) {
	status, err := p.call(ctx, http.MethodGet, "/inbox", nil, &ids)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("GET /inbox was answered %d", status)
	}
	return ids, err
}

// caughtUp is the answer of POST /catchup.
type caughtUp struct {
	Missing *int   `json:"missing"`
	Error   string `json:"error"`
}

func (p *program) catchUp(ctx context.Context) (missing int, err error) {
	var answer caughtUp
	status, err := p.call(ctx, http.MethodPost, "/catchup", nil, &answer)
	switch {
	case err != nil:
		return 0, err
	case status != http.StatusOK || answer.Missing == nil:
		return 0, fmt.Errorf("POST /catchup was answered %d: %s", status, cmp.Or(answer.Error, "no missing"))
	}
	return *answer.Missing, nil
}

// tail keeps the last of what a program writes, for the message about its end.
type tail struct {
	to io.Writer

	mu   sync.Mutex
	kept []byte
}

const maxTail = 4 << 10

// Write implements io.Writer.
func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, text...)
	t.kept = t.kept[max(0, len(t.kept)-maxTail):]
	if t.to != nil {
		return t.to.Write(text)
	}
	return len(text), nil
}

// String returns what was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
