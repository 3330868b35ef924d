package main

import (
	"regexp"
	"testing"
)

const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// The vector that Standard Webhooks publishes with its libraries.
func TestSignVector(t *testing.T) {
	t.Parallel()
	command(t, `{"test": 2432232314}`, "sign", "--secret-file", secretFile(t, testSecret),
		"--id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "--timestamp", "1614265330").
		want(t, exitOK, "webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\n", "")
}

func TestVerify(t *testing.T) {
	t.Parallel()
	signed := command(t, "body", "sign", "--secret-file", secretFile(t, testSecret), "--id", "evt_1")
	signed.want(t, exitOK, "webhook-id: evt_1", "")
	value := func(name string) string {
		return regexp.MustCompile(name + `: (.*)\n`).FindStringSubmatch(signed.stdout)[1]
	}
	args := []string{
		"verify", "--secret-file", secretFile(t, testSecret), "--id", "evt_1",
		"--timestamp", value("webhook-timestamp"), "--signature", value("webhook-signature"),
	}
	command(t, "body", args...).want(t, exitOK, "verified", "")
	command(t, "body!", args...).want(t, exitFailure, "", "not verified")
}

func TestVerifyTolerance(t *testing.T) {
	t.Parallel()
	args := []string{
		"verify", "--secret-file", secretFile(t, testSecret), "--id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "--timestamp", "1614265330",
		"--signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
	}
	command(t, `{"test": 2432232314}`, args...).want(t, exitFailure, "", "too old")
	command(t, `{"test": 2432232314}`, append(args, "--tolerance", "0")...).want(t, exitOK, "verified", "")
}
