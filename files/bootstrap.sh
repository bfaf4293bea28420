# Installs python3 on a host where the agent cannot run. Given in variables, which stand before
# it: supported ("id version" of each system, separated by |), names (the same for people) and
# lock_wait_s. A line that begins with "! " is one sentence on why it stopped, with status 3.
stop() {
    printf '! %s\n' "$1"
    exit 3
}

# Nothing is changed on a system that the data does not name (os-release(5) is shell syntax).
for file in /etc/os-release /usr/lib/os-release; do
    [ -r "$file" ] && break
done
[ -r "$file" ] || stop "this host has no /etc/os-release, supported are $names: install one of those"
found=$(. "$file" && printf '%s' "${ID:-linux}${VERSION_ID:+ $VERSION_ID}")
name=$(. "$file" && printf '%s' "${PRETTY_NAME:-$found}")
case "|$supported|" in
*"|$found|"*) ;;
*) stop "this host runs $name ($found), supported are $names: install one of those, or add it to supported_os" ;;
esac
command -v apt-get >/dev/null || stop "this host has no apt-get to install python3 with: install python3 by hand"
[ "$(id -u)" = 0 ] || stop "only root may install python3: log in as root, or set _sudo = True"

export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C
apt() {
    apt-get -q -y -o DPkg::Lock::Timeout="$lock_wait_s" -o Dpkg::Use-Pty=0 "$@"
}
# dpkg keeps a journal while it works; apt refuses to go on after one that was cut off.
set -- /var/lib/dpkg/updates/[0-9]*
[ ! -e "$1" ] || dpkg --force-confdef --force-confold --configure -a
apt update && apt install --no-install-recommends python3
