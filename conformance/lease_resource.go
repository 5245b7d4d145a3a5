package conformance

import "github.com/mcp-vdisk/mcp-vdisk/workspace/lease"

// resourceRules are about what a lease is for: it refuses by itself, without
// asking the provider.
func resourceRules() []leaseRule {
	rule := leaseRuleOf
	return []leaseRule{
		rule("fence.resource_remembers_max", "a resource refuses a token below the highest that it has seen", needResource, checkRemembers),
		rule("fence.resource_reopened", "a resource remembers the highest token for ever", needResource, checkRemembersReopened),
		rule("fence.missing_token_refused", "once leased, a resource is not written without a token", needResource, checkMissing),
		rule("fence.other_install_refused", "a token of another counter is no token", needResource, checkOtherInstall),
	}
}

var (
	thisInstall  = [16]byte{0: 1, 15: 1}
	otherInstall = [16]byte{0: 2, 15: 2}
)

// resource makes a resource that was written with tokens 5 and 7.
func (t *leaseTrial) resource() Resource {
	r, err := t.c.Resource(t.ctx)
	t.must(err)
	t.cleanup = append(t.cleanup, func() { _ = r.Close() })
	t.must(r.Write(t.ctx, lease.Mark{}, "zero"))
	t.must(r.Write(t.ctx, lease.Mark{Install: thisInstall, Token: 5}, "five"))
	t.must(r.Write(t.ctx, lease.Mark{Install: thisInstall, Token: 7}, "seven"))
	return r
}

// refuses says that a write must not get through, and a good one must.
func (t *leaseTrial) refuses(r Resource, m lease.Mark, when string) {
	if err := r.Write(t.ctx, m, "late"); err == nil {
		t.fail("%s: token %d was accepted after 7", when, m.Token)
	}
	value, err := r.Value(t.ctx)
	t.must(err)
	if value != "seven" {
		t.fail("%s: it holds %q", when, value)
	}
	t.must(r.Write(t.ctx, lease.Mark{Install: thisInstall, Token: 7}, "seven again"))
}

func checkRemembers(t *leaseTrial) {
	t.refuses(t.resource(), lease.Mark{Install: thisInstall, Token: 6}, "a late write")
}

func checkRemembersReopened(t *leaseTrial) {
	r := t.resource()
	t.must(r.Reopen(t.ctx))
	t.refuses(r, lease.Mark{Install: thisInstall, Token: 6}, "a late write after a restart")
}

func checkMissing(t *leaseTrial) {
	t.refuses(t.resource(), lease.Mark{}, "a write without a token")
}

func checkOtherInstall(t *leaseTrial) {
	t.refuses(t.resource(), lease.Mark{Install: otherInstall, Token: 9}, "a write from another install")
}
