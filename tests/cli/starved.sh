# A warning is printed for experts that received less than a tenth of an even share of their layer's tokens.
tiny=$GOLDEN/tiny-mixtral
for _ in $(seq 320); do printf '\054\001'; done >ids.u16
printf '\062\000' >>ids.u16
head -c 638 ids.u16 >odd.u16 && printf '\062\000' >>odd.u16
fm-rank --json --model "$tiny" --seq-len 64 --tokens odd.u16 --eval-tokens odd.u16 -o ranked 2>said >report
sed 's/[0-9][0-9]* experts/N experts/; s/[0-9]* of 32/M of 32/; s/layer . expert ./layer L expert E/' said
grep -c '"starved": [1-9]' report
