package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"spendhook/api/gen"
)

// Doctor and metrics name the receivers that get nothing: without an access token, and without a verified URL.
func TestReceiversThatGetNothingAreNamed(t *testing.T) {
	t.Parallel()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_client"}`))
	}))
	t.Cleanup(refusing.Close)
	url := sharedRedis(t)
	h := newInstallation(t, url, "")
	base := "dev: true\nredis: " + url + "\ndelivery: {failing_after: 1}\n"
	h.settings(t, base)
	d := h.start(t)
	sub := gen.SubscriberWithSecret{}
	create := func(path, oauth string) {
		t.Helper()
		body := fmt.Sprintf(`{"name":"n","callbackUrl":"%s/%s","events":["PAYMENT_PAID"]%s}`, refusing.URL, path, oauth)
		sendWithKey(t, d, "/api/v1/subscribers", body, path, &sub)
	}
	create("fails", "")
	create("token", fmt.Sprintf(`,"oauth":{"tokenUrl":"%s/token","clientId":"c","clientSecret":"secret"}`, refusing.URL))
	args := []string{"--config", filepath.Join(h.dir, "config.yml"), "--data-dir", h.dir}
	tokens := func() finding { return found(t, exitOK, args...)["receiver tokens"] }
	if got := tokens(); got.Result != findingOK {
		t.Errorf("before the first attempt: %+v", got)
	}
	event := fmt.Sprintf(`{"id":"e1","event":"PAYMENT_PAID","companyUuid":"%s","timestamp":"2026-11-30T09:00:00Z","metadata":{}}`, developerCompany)
	sendWithKey(t, d, "/api/v1/events", event, "emit", &struct{}{})
	eventually(t, patience, "doctor names the subscriber", func() bool {
		got := tokens()
		return got.Result == findingWarning && strings.HasPrefix(got.Message, "subscriber "+sub.UUID.String()+" ") && strings.Contains(got.Message, refusing.URL+"/token")
	})
	d.stop(t)
	h.settings(t, base+"subscribers: {challenge: all}\n")
	d = h.start(t)
	eventually(t, patience, "the subscribers wait for their verification", func() bool {
		waits := found(t, exitOK, args...)["callback URLs"]
		return strings.HasPrefix(waits.Message, "2 subscribers are not verified")
	})
	d.stop(t)
	d = h.start(t)
	eventually(t, patience, "the metric counts them", func() bool {
		_, metrics := get(t, d.admin+"/metrics")
		return strings.Contains(metrics, "\nspendhook_subscribers_unverified 2\n")
	})
}

// Doctor names a subscriber whose retries take longer than events are kept, since the retention was made shorter.
func TestSchedulesBeyondTheRetentionAreNamed(t *testing.T) {
	t.Parallel()
	url := sharedRedis(t)
	h := newInstallation(t, url, "")
	base := "dev: true\nredis: " + url + "\n"
	h.settings(t, base)
	d := h.start(t)
	var sub gen.SubscriberWithSecret
	sendWithKey(t, d, "/api/v1/subscribers", `{"name":"n","callbackUrl":"https://example.com/hook","events":["A"],"retrySchedule":[86400,172800]}`, "long", &sub)
	args := []string{"--config", filepath.Join(h.dir, "config.yml"), "--data-dir", h.dir}
	if got := found(t, exitOK, args...)["retry schedules"]; got.Result != findingOK {
		t.Errorf("while events are kept for 7 days: %+v", got)
	}
	d.stop(t)
	h.settings(t, base+"events: {retention: 72h}\ndelivery: {schedule: [1h]}\n")
	got := found(t, exitOK, args...)["retry schedules"]
	if want := "the retries of subscriber " + sub.UUID.String() + " of company " + developerCompany.String() + " take up to 86h24m0s, and events are kept for 72h0m0s"; got.Result != findingWarning || !strings.HasPrefix(got.Message, want) {
		t.Errorf("afterwards: %+v", got)
	}
}

// The settings limit challenges and certificates.
func TestLimitsOfReceivers(t *testing.T) {
	t.Parallel()
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(silent.Close)
	url := sharedRedis(t)
	h := newInstallation(t, url, "")
	h.settings(t, "dev: true\nredis: "+url+"\nsubscribers: {challenge: new}\n"+
		"limits: {host_challenges_hour: 4, company_challenges_hour: 10000, subscriber_certificates: 1}\n")
	d := h.start(t)
	certificate := certificateBody(t, clientPair(t))
	for i, want := range []string{"CHALLENGE_FAILED", "TOO_MANY_CHALLENGES"} {
		var sub gen.SubscriberWithSecret
		sendWithKey(t, d, "/api/v1/subscribers", fmt.Sprintf(`{"name":"n","callbackUrl":"%s/%d","events":["A"]}`, silent.URL, i), strconv.Itoa(i), &sub)
		path := "/api/v1/subscribers/" + sub.UUID.String()
		if _, _, answer := d.do(t, http.MethodPost, path+"/verify", ""); !strings.Contains(answer, want) {
			t.Errorf("challenge %d: %s", i, answer)
		}
		status, _, answer := d.do(t, http.MethodPut, path+"/egress-certificate", certificate)
		if (status == http.StatusOK) != (i == 0) || i > 0 && !strings.Contains(answer, "TOO_MANY_CERTIFICATES") {
			t.Errorf("certificate %d: %d %s", i, status, answer)
		}
	}
}
