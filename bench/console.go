package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// visitor is a session of the console.
type visitor struct {
	base   string
	cookie string
}

// consoleScopes are those of a session that may see all.
const consoleScopes = scopes + " deliveries:write operator"

// visit opens a session of a company, or of all for "".
func (d *daemon) visit(ctx context.Context, company string) (*visitor, error) {
	token, err := mint(ctx, d.program, d.config(), consoleScopes)
	if err != nil {
		return nil, err
	}
	asker := *d
	asker.token = token
	in := map[string]any{"companyUuid": company}
	if company == "" {
		in = map[string]any{"allCompanies": true}
	}
	var link struct {
		URL string `json:"url"`
	}
	if err := asker.call(ctx, http.MethodPost, "/api/v1/console-links", in, &link); err != nil {
		return nil, err
	}
	_, secret, _ := strings.Cut(link.URL, "?link=")
	v := &visitor{base: d.base}
	return v, v.open(ctx, secret)
}

// consoleClient follows nothing.
var consoleClient = &http.Client{
	Timeout:       time.Minute,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (v *visitor) open(ctx context.Context, secret string) error {
	form := url.Values{"link": {secret}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.base+"/console/open", strings.NewReader(form))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := consoleClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	cookies := resp.Cookies()
	if resp.StatusCode != http.StatusSeeOther || len(cookies) != 1 {
		return fmt.Errorf("open the console: %s", resp.Status)
	}
	v.cookie = cookies[0].Name + "=" + cookies[0].Value
	return nil
}

// refresh asks for a page as a page that loads itself again does, and reads all of it.
func (v *visitor) refresh(ctx context.Context, path string) (took time.Duration, size int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.base+path, nil)
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Cookie", v.cookie)
	req.Header.Set("X-Refresh", "1")
	start := time.Now()
	resp, err := consoleClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	size, err = io.Copy(io.Discard, resp.Body)
	took = time.Since(start)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	return took, size, err
}

// looked is the cost of a view of a page.
type looked struct {
	p50, p95 time.Duration
	cpu      time.Duration // of daemon and Redis, each time
	size     int64         // of the page, in bytes
}

// look asks for a page so many times, every time after a while.
func (s *stack) look(ctx context.Context, v *visitor, path string, times int, every time.Duration) (l looked, err error) {
	if _, _, err = v.refresh(ctx, path); err != nil { // so that templates and connections are there
		return l, err
	}
	var all []float64
	var cpu time.Duration
	for range times {
		if err := pause(ctx, every); err != nil {
			return l, err
		}
		before, err := s.usage()
		if err != nil {
			return l, err
		}
		took, size, err := v.refresh(ctx, path)
		if err != nil {
			return l, err
		}
		after, err := s.usage()
		if err != nil {
			return l, err
		}
		used := after.since(before)
		cpu += used.daemon + used.redis
		all, l.size = append(all, float64(took)), size
	}
	slices.Sort(all)
	l.p50, l.p95 = time.Duration(quantile(all, 0.50)), time.Duration(quantile(all, 0.95))
	l.cpu = cpu / time.Duration(times)
	return l, nil
}
