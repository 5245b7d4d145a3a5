package sandboxrun

// Implementations names what the sandbox of this host uses for each primitive
// that not every host has, for `doctor`. "none" means that it does without, or
// that no sandbox could be made.
func (rep Report) Implementations() map[string]string {
	m := map[string]string{"pidfd": "none", "overlay": "none", "cgroup": "none"}
	for _, c := range rep.Checks {
		switch {
		case !c.OK:
		case c.Name == "stage":
			m["overlay"] = "overlayfs, changes on " + rep.Upper
		case c.Name == "sandbox":
			m["pidfd"] = "pidfd_open"
		}
	}
	for _, l := range rep.Limits {
		if l.Resource == "memory" && l.By != ByRlimit {
			m["cgroup"] = l.By
		}
	}
	return m
}
