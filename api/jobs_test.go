package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

func TestRetryDeliveries(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	const path = "/api/v1/deliveries/retry"
	failing := o.failing.UUID.String()

	dry := o.call("POST", path, `{"errorClass":["http_5xx"],"event":["OTHER","PAYMENT_PAID"],"status":["DEAD"],"statusCodeFrom":500,"statusCodeTo":599,"from":"`+o.before+`","to":"`+o.after+`","dryRun":true}`).want(http.StatusOK)
	counted := as[gen.Job](dry)
	if counted.Changed != 2 || counted.Status != "COMPLETED" || !counted.DryRun || counted.SubscriberUUID != nil || counted.Filter.ErrorClass[0] != "http_5xx" || *counted.Filter.StatusCodeFrom != 500 {
		t.Errorf("%s", dry.Body)
	}
	if again := as[gen.Job](o.call("GET", dry.Header().Get("Location"), "").want(http.StatusOK)); again.UUID != counted.UUID || again.Status != "COMPLETED" {
		t.Errorf("%+v", again)
	}

	started := o.call("POST", path, `{"subscriberUuid":"`+failing+`","event":["OTHER"]}`, header("Idempotency-Key", "k")).want(http.StatusAccepted)
	repeated := o.call("POST", path, `{"subscriberUuid":"`+failing+`","event":["OTHER"]}`, header("Idempotency-Key", "k")).want(http.StatusAccepted)
	if as[gen.Job](repeated).UUID != as[gen.Job](started).UUID {
		t.Error("the key started another job")
	}
	var job gen.Job
	eventually(t, func() bool {
		job = as[gen.Job](o.call("GET", started.Header().Get("Location"), "").want(http.StatusOK))
		return job.Status == "COMPLETED"
	})
	if job.Changed != 1 || job.SubscriberUUID.String() != failing || job.Filter.Status[0] != "DEAD" {
		t.Errorf("%+v", job)
	}
	eventually(t, func() bool {
		d := as[gen.DeliveryDetail](o.call("GET", "/api/v1/deliveries/other."+failing, ""))
		return d.AttemptCount == 4 && d.Status == "DEAD"
	})
	o.call("POST", "/api/v1/jobs/"+job.UUID.String()+"/cancel", "").want(http.StatusConflict, "JOB_FINISHED")
	o.call("POST", "/api/v1/jobs/"+uuid.NewString()+"/cancel", "").want(http.StatusNotFound)
	if page := as[gen.JobList](o.call("GET", "/api/v1/jobs?kind=retry,drop&status=COMPLETED&size=1", "").want(http.StatusOK)); len(page.Content) != 1 || page.NextCursor == "" {
		t.Errorf("%+v", page)
	}

	for body, field := range map[string]string{
		`{"status":["LOST"]}`: "status", `{"errorClass":["lost"]}`: "errorClass", `{"event":["*a"]}`: "event",
		`{"statusCodeFrom":99}`: "statusCodeFrom", `{"statusCodeTo":600}`: "statusCodeTo", `{"statusCodeFrom":500,"statusCodeTo":499}`: "statusCodeTo",
		`{"from":"` + o.after + `","to":"` + o.before + `"}`: "to",
	} {
		o.call("POST", path, body).wantField(field, "INVALID")
	}
	for _, status := range []string{"DEAD", "DELIVERED", "DELIVERING", "CANCELLED"} {
		o.call("POST", "/api/v1/deliveries/cancel", `{"status":["PENDING","`+status+`"]}`).wantField("status", "INVALID")
	}
	cancelled := as[gen.Job](o.call("POST", "/api/v1/deliveries/cancel", `{"dryRun":true,"event":["OTHER"]}`).want(http.StatusOK))
	if cancelled.Kind != gen.JobKindCANCEL || cancelled.Changed != 0 || cancelled.Filter.Event[0] != "OTHER" || len(cancelled.Filter.Status) != 2 {
		t.Errorf("%+v", cancelled)
	}
	o.call("POST", path, `{"status":[]}`).wantField("status", "REQUIRED")
	o.call("POST", path, `{"event":[`+strings.Repeat(`"A",`, 100)+`"A"]}`).wantField("event", "TOO_MANY")
	o.call("POST", path, `{"subscriberUuid":"`+uuid.NewString()+`"}`).want(http.StatusNotFound, "SUBSCRIBER_NOT_FOUND")
	o.call("POST", path, `{}`, bearer(o.mint(nil, allScopes))).wantField("companyUuid", "REQUIRED")
}
