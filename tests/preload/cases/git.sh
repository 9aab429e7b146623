#!/bin/bash
# git: commits, merges, packing with threads, a clone, and everything checked.
set -euo pipefail
command -v git >/dev/null || { echo "SKIP: git is not installed"; exit 77; }
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_AUTHOR_DATE='2020-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
export GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
git init -q -b main repository
cd repository
for i in $(seq 20); do
  mkdir -p "folder$((i % 7))"
  seq "$i" $((i * 300)) >"folder$((i % 7))/file$i"
  seq "$i" 1000 >changing
  git add -A
  git commit -qm "commit $i"
done
git checkout -q -b side HEAD~10
echo side >side
git add side
git commit -qm side
git merge -q --no-edit main
git status
git log --stat --graph | cksum
git log --format='%H %s' -3
git -c pack.threads=2 repack -adfq
git fsck --full 2>&1
git grep -c 77 | cksum
git blame changing | cksum
git diff HEAD~8 | cksum
cd ..
git clone -q repository copy
git -C copy log --format=%H -1
git -C copy archive --format=tar HEAD | cksum
