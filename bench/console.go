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

// consoleSession is a session of the web console.
type consoleSession struct {
	base   string
	cookie string
}

// consoleScopes are the scopes of a session that may see every page.
const consoleScopes = scopes + " deliveries:write operator"

// openConsole opens a session of a company, or of all companies if the company is "".
func (d *daemon) openConsole(ctx context.Context, company string) (*consoleSession, error) {
	token, err := mint(ctx, d.program, d.config(), consoleScopes)
	if err != nil {
		return nil, err
	}
	withScopes := *d
	withScopes.token = token
	in := map[string]any{"companyUuid": company}
	if company == "" {
		in = map[string]any{"allCompanies": true}
	}
	var link struct {
		URL string `json:"url"`
	}
	if err := withScopes.call(ctx, http.MethodPost, "/api/v1/console-links", in, &link); err != nil {
		return nil, err
	}
	_, secret, _ := strings.Cut(link.URL, "?link=")
	v := &consoleSession{base: d.base}
	return v, v.open(ctx, secret)
}

// consoleClient does not follow redirects.
var consoleClient = &http.Client{
	Timeout:       time.Minute,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (v *consoleSession) open(ctx context.Context, secret string) error {
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

// refresh requests a page like a browser page that refreshes itself, and reads all of it.
func (v *consoleSession) refresh(ctx context.Context, path string) (took time.Duration, size int64, err error) {
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

// pageCost is the cost of one refresh of a page.
type pageCost struct {
	p50, p95 time.Duration
	cpu      time.Duration // of daemon and Redis, the mean
	size     int64         // bytes
}

// measurePage requests a page so many times, each time after a pause of every.
func (s *stack) measurePage(ctx context.Context, v *consoleSession, path string, times int, every time.Duration) (l pageCost, err error) {
	if _, _, err = v.refresh(ctx, path); err != nil { // not measured: it parses templates and opens connections
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
