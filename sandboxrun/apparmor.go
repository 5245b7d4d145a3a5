package sandboxrun

import (
	"fmt"
	"strings"
)

// AppArmorProfile returns the AppArmor profile that lets the program at path
// make user namespaces, where kernel.apparmor_restrict_unprivileged_userns
// takes that from all that have none (Ubuntu 24.04 and newer). It confines
// nothing else. packaging/apparmor/mcp-vdisk is the one for /usr/bin/mcp-vdisk.
//
// A profile for bubblewrap alone does not help: the stage makes a namespace
// before it starts bubblewrap.
func AppArmorProfile(path string) string {
	return fmt.Sprintf(`abi <abi/4.0>,
include <tunables/global>

profile mcp-vdisk %s flags=(unconfined) {
  userns,

  include if exists <local/mcp-vdisk>
}
`, quoteAppArmor(path))
}

// quoteAppArmor writes a path so that nothing in it is a pattern (apparmor.d(5)).
func quoteAppArmor(path string) string {
	escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `{`, `\{`, `}`, `\}`, `^`, `\^`, `,`, `\,`, `@`, `\@`, "\n", `\012`).Replace(path)
	if strings.ContainsAny(escaped, " \t\\") {
		return `"` + escaped + `"`
	}
	return escaped
}

const remedyAppArmor = "install the AppArmor profiles that mcp-vdisk doctor prints; as a last resort: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"

// stepsAppArmor is what a person does about the restriction, with the real path
// of this program, as lines for the shell of root.
func stepsAppArmor(self string) string {
	if self == "" {
		self = "/usr/bin/mcp-vdisk"
	}
	return `cat >/etc/apparmor.d/mcp-vdisk <<'END'
` + AppArmorProfile(self) + `END
apparmor_parser -r /etc/apparmor.d/mcp-vdisk
apt-get install -y apparmor-profiles
install -m644 /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/
apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict
`
}
