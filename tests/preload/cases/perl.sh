#!/bin/bash
# Perl: hashes, strings that grow, regular expressions, sorting, fork and pipes.
set -euo pipefail
cat >program.pl <<'PROGRAM'
use strict; use warnings;
my (%count, $text);
for my $i (1 .. 100000) { my $word = "w" . ($i * 7919 % 5003); $count{$word}++; $text .= "$word " }
my @top = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
print "$_ $count{$_}\n" for @top[0 .. 9];
my $n = () = $text =~ /w(\d)\1/g;
print "doubles $n length ", length $text, "\n";
my @rows = map { [ map { $_ * 3 } 1 .. 100 ] } 1 .. 1000;
my $sum = 0; for my $row (@rows) { $sum += $_ for @$row } print "$sum\n";
my @children;
for my $i (1 .. 50) {
  pipe(my $r, my $w) or die; my $pid = fork // die;
  if (!$pid) { close $r; my %h = map { $_ => "x" x $_ } 1 .. 300; print $w join ",", sort keys %h; exit 0 }
  close $w; push @children, [ $pid, $r ];
}
for (@children) { my ($pid, $r) = @$_; local $/; print length(<$r>), " "; waitpid $pid, 0; print "$?\n" }
PROGRAM
perl program.pl
