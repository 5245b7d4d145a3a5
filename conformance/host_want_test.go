package conformance

import "testing"

func TestWants(t *testing.T) {
	for _, tc := range []struct {
		name string
		want want
		got  string
		is   Status
	}{
		{"the errno", is("EPERM", "ENOSYS"), "ENOSYS", Passed},
		{"another", is("EPERM", "ENOSYS"), "OK", Failed},
		{"no answer", is("EPERM"), "", Failed},
		{"nothing", nothing(), "", Passed},
		{"something", nothing(), "/etc", Failed},
		{"weak", nothing().orWeak("why"), "27", Weak},
		{"not weak", nothing().orWeak("why"), "", Passed},
		{"few", atMost(6), "2", Passed},
		{"at the border", atMost(6), "6", Passed},
		{"too many", atMost(6), "7", Failed},
		{"none at all", atMost(6), "0", Failed},
		{"no number", atMost(6), "six", Failed},
		{"limit", limitedTo(256), "256/256", Passed},
		{"lower limit", limitedTo(256), "10/10", Passed},
		{"hard limit", limitedTo(256), "256/257", Failed},
		{"no limit", limitedTo(256), "18446744073709551615/18446744073709551615", Failed},
		{"half a limit", limitedTo(256), "256", Failed},
		{"stopped", between(196, 256, "EAGAIN"), "251 EAGAIN", Passed},
		{"stopped late", between(196, 256, "EAGAIN"), "257 EAGAIN", Failed},
		{"never stopped", between(196, 256, "EAGAIN"), "200 OK", Failed},
		{"stopped early", between(196, 256, "EAGAIN"), "195 EAGAIN", Failed},
		{"nothing done", between(196, 256, "EAGAIN"), "0 EAGAIN", Failed},
		{"garbage", between(196, 256, "EAGAIN"), "EAGAIN", Failed},
	} {
		if s, _ := tc.want.judge(tc.got); s != tc.is {
			t.Errorf("%s: %q is %s, want %s", tc.name, tc.got, s, tc.is)
		}
	}
}
