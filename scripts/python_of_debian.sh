#!/usr/bin/env bash
# Unpack a newer Python than this Debian has into a folder, without installing anything, and print the path of its
# interpreter. The packages come from Debian's newest suite, through apt's configured mirror and Debian's keys, with
# their own C library.
#
#   bash scripts/python_of_debian.sh 3.14 .python-3.14
#
# Prints nothing, and ends with status 1, where there is no apt, no mirror of Debian, or no such package.
set -euo pipefail
version=$1
folder=$(mkdir -p "$2" && cd "$2" && pwd)
python=$folder/usr/bin/python$version

if ! [ -x "$python" ]; then
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 2>/dev/null | grep -v security | head -n 1)
    [ -n "$mirror" ] && [ -f "$keys" ] || exit 1
    mkdir -p "$folder"/apt/{lists,cache/archives}/partial
    echo "deb [signed-by=$keys] $mirror sid main" >"$folder/apt/sources.list"
    apt=(-o Dir::Etc::SourceList="$folder/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$folder/apt/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$folder/apt/cache"
        -o APT::Sandbox::User=)
    apt-get "${apt[@]}" -qq update >&2 || exit 1
    apt-get "${apt[@]}" -qq install --download-only --no-install-recommends -y \
        "python$version" "python$version-venv" "libpython$version-dev" >&2 || exit 1
    for package in "$folder"/apt/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$folder"
    done
    rm -r "$folder/apt"

    # Python's own loader finds its libraries; --argv0 keeps the name under which a virtual environment calls it.
    triplet=$(basename "$(dirname "$(echo "$folder"/usr/lib/*/ld-linux*.so.*)")")
    libraries=$folder/usr/lib/$triplet
    mv "$python" "$python-unpacked"
    cat >"$python.partial" <<SH
#!/bin/sh
exec "$(echo "$libraries"/ld-linux*.so.*)" --library-path "$libraries" --argv0 "\$0" "$python-unpacked" "\$@"
SH
    # Debian's Python looks for its headers and for the wheel of pip below /usr.
    mkdir -p "$folder/usr/include/python$version/$triplet"
    ln -sfn "../../$triplet/python$version" "$folder/usr/include/python$version/$triplet/python$version"
    sed -i "s#'/usr/share/python-wheels/*'#'$folder/usr/share/python-wheels'#" \
        "$folder/usr/lib/python$version"/_sysconfigdata_*.py
    chmod +x "$python.partial"
    mv "$python.partial" "$python"
fi
"$python" -c '' || exit 1
echo "$python"
